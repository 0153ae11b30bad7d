"""Image operations inside the compiled step: augmentation and normalization."""
