"""Template that `fedjax-ssl new` writes, with the study's name in place of `my_study`."""
