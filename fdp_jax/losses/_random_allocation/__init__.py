"""Random allocation ("balls in bins")."""
