"""Content-addressed artifacts over S3 or a folder."""
