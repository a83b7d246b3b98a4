"""
Limits token creation at an OAuth 2 token endpoint.
"""
