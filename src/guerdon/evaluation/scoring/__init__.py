"""`guerdon score`: rewards as columns of files and logs."""
