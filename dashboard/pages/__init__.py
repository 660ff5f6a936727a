"""One module or package for each page: from data to a view in the words and numbers of the page."""
