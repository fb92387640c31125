"""Quota objects of other APIs as trees: one file per API, and a tree written down as an ElasticQuotaTree."""
