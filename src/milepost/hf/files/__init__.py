"""Extended models in folders: saved, loaded, exported."""
