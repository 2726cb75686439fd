"""What a BERT with a task head says of texts: one module a task, over a shared frame.

head = Head.open(find_model("dslim/bert-base-NER", files=MODEL_FILES), BertForTokenClassification)
for window in TagTask(head).stream(Reader(Source(texts=("Angela lives in Berlin.",)))):
    for result in window:
        print(result.fields)
"""
