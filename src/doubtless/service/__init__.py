"""The service: the application over HTTP. `app.create_app` puts it together."""
