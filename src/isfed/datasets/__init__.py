"""Where data comes from: tables, encoders, partitions and named data sets."""

from isfed.datasets.encoder import Scaling, standardise
from isfed.datasets.partition import Partition
from isfed.datasets.table_data import Columns, FederatedTable, read_table

__all__ = ["Columns", "FederatedTable", "Partition", "Scaling", "read_table", "standardise"]
