"""Audits of adapters from their files: did training change the model, and if not, why?

torch is imported only when something is used that needs it.
"""
