"""The protocol: typed messages, grouped by who reads them. Importable from anywhere; they decide nothing."""
