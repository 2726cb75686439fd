"""Tasks of a BERT: what a head predicts for texts, and what a model can learn from examples.

head = Head.open(find_model("dslim/bert-base-NER", files=MODEL_FILES), "BertForTokenClassification")
for window in Tagger(head).stream(Reader(Source(texts=("Angela lives in Berlin.",)))):
    for result in window:
        print(result.fields)

Each task is one module. `classify`, `multilabel`, `regress`, `tag`, `answer` and `pairs` (vectors)
can be learnt: by the interface in `learning` they have the fields of their examples, the ids of
labels, the loss, predictions and metrics; `registry` lists them. `fill_mask`, `next_sentence`,
`choose` and `rerank` only predict; `rerank_answers` sorts the results of a search, `needed_models`
names models for each task.

`head` opens a model with a head over tokens or over pooled vectors, and runs a task over texts;
`results` are the rows written. `examples` reads records with their targets, `labels` numbers words,
`metrics` compares predictions with the truth, `evaluated_model` computes those of a model. torch or
OpenVINO runs the model; torch is imported only by losses. Begin with `head`, then `classify`.
"""
