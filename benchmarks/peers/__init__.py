"""The comparison with other projects: adapters, measurements, probes, tables and the plot."""
