"""The captions of a captioner in a form that tests compare."""


def every(captioner, paths, batch_size=16, **options):
    """Yields (path, captions [K], scores [K]) of each picture, best first; it must be readable."""
    for one in captioner.stream(paths, batch_size=batch_size, **options):
        found = (one, *one.alternatives)
        yield one.source, [each.text for each in found], [each.score for each in found]
