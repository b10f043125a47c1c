"""Built-in policies of the axes that no component owns. They are registered as entry points, like any plugin."""
