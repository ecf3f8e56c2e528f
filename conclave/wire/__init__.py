"""The wire formats: parsing requests, writing responses and events, and their OpenAPI document."""
