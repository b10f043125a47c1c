"""Ways into frameworks that train or serve; each module is imported only where its framework is."""
