"""Turn saved samples of one or several runs into tables, plots and one page."""
