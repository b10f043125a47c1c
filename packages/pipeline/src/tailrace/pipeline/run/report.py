"""placeholder to be replaced before commit"""


def write_report(directory):
    pass
