"""Is this environment fit? Packages that import, fast paths that run, masks that are honoured, memory that suffices."""
