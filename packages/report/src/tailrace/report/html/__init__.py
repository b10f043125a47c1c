"""The frame of a page: template, style and the script that draws its charts."""
