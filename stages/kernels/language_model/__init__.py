"""CCNet's normalisation, SentencePiece's segmentation and KenLM's probability, in compiled calls.

The libraries are reimplemented with the same float32 operations in the same order, so pieces and
probabilities are equal bit by bit. The work saved is that around them: texts are read from Arrow's
memory, and pieces are not copied to Python objects, joined to a string, split again and hashed.

    normalization   text -> normal form: both normalisations by one table of characters
    pieces          normal form -> pieces: Viterbi search over a trie of the model's pieces
    ngrams          pieces -> log10 p: KenLM's hash tables, mapped from the file
    scoring         all three, one after the other, for the texts of a batch
"""
