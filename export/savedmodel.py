"""The same command as `python -m tfcap.export`, for a checkout: `python -m export.savedmodel`."""

from tfcap.export import main

if __name__ == "__main__":
    main()
