"""Models, tokenizers and texts that a config may name.

registry             names -> files on this machine
published            what others publish: addresses, digests, licences
download, cache      fetch a file; keep it, verified, for all processes
demo                 texts of the demo, and recipes of the models that are trained on them
corpus               texts to train on, and which of them are held out
lm_training          SentencePiece and KenLM, as CCNet does
classifier_training  fastText, as LLaMA's reference classifier
kenlm_build          KenLM's programs, built from source
"""
