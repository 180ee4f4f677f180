"""Answers HTTP requests with captions: for `tfcap serve`, and what the page of the demo shares.

* `web.py`: who is answered, limits, errors, and the loop of the server
* `pictures.py`: reads the pictures of a request
* `batches.py`: captions the pictures of several requests together
* `service.py`: the captioner behind `tfcap serve`, with its limits and measurements
* `openai.py`, `ollama.py`, `tf_serving.py`: the requests and answers of these three interfaces
* `application.py`: which path has which handler
"""
