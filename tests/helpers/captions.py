"""The captions of a captioner in a form that tests compare."""


def every(captioner, paths, batch_size=16, **options):
    """Yields (path, captions [K], scores [K]) of each picture, best first; it must be readable."""
    for one in captioner.stream(paths, batch_size=batch_size, **options):
        result = (one, *one.alternatives)
        yield one.source, [each.text for each in result], [each.score for each in result]
