"""The guide: chapters in English and Chinese, a page for every public name, and what builds the site of them."""
