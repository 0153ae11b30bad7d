"""Image operations inside the compiled step: augmentation."""
