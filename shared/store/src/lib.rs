//! Weights in a folder or a store of objects: published once, fetched by many.
