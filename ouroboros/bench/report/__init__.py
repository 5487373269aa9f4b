"""From saved samples to tables, pictures and one page; several runs as one."""
