"""Answers HTTP requests with captions: for `tfcap serve`, and what the page of the demo shares.

* `web.py`: who is answered, limits, errors, and the loop of the server
* `pictures.py`: reads the pictures of a request, and answers as TF Serving does
* `batches.py`: captions the pictures of several requests together
* `service.py`: the captioner behind `tfcap serve`, with its limits and measurements
* `openai.py`, `ollama.py`: the requests and answers of these two interfaces
* `application.py`: which path has which handler
"""
