"""The broker: leases warm, isolated kernels to sessions and streams what their cells produce.

Imports point down only: app -> api -> sessions -> pool -> backends -> kernels -> protocol.
"""
