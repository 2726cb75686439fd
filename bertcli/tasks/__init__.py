"""Tasks: predictions of a model with a head, and learning from examples.

head = Head.open(find_model("dslim/bert-base-NER", files=MODEL_FILES), "BertForTokenClassification")
for window in Tagger(head).stream(Reader(Source(texts=("Angela lives in Berlin.",)))):
    for result in window:
        print(result.fields)

Each task is one module. `classify`, `multilabel`, `regress`, `tag`, `answer` and `pairs` (vectors)
can be learned: they implement the interface in `learning`, with the fields of examples, the ids of
labels, the loss, predictions and metrics; `registry` lists them. `fill_mask`, `next_sentence`,
`choose`, `rerank`, `zero_shot`, `pseudo_likelihood` and `bert_score` only predict; `several_texts`
runs several texts or pairs for each record, `rerank_answers` reranks the results of a search,
`needed_models` has example models for each task.

`head` opens a model with a head on tokens or on pooled vectors, and runs a task on texts; `results`
makes the output rows, `entities` redacts texts. `examples` reads examples with their targets,
`labels` maps labels to ids, `metrics` compares predictions with targets, `evaluated_model` predicts
with a model. torch or OpenVINO runs the model; torch is imported only by losses. Begin with `head`,
then `classify`.
"""
