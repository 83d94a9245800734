"""HTML pages: charts, formats of numbers, templates."""
