"""Trees, token selection and records of a run; imports no other folder of the package."""
