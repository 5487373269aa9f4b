"""One token tree shared by several processes: how it is cut and how ranks exchange choices."""
