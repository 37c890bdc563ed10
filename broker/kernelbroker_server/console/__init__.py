"""The console: a web page for people, in files, and the frame that shows HTML of cells."""
