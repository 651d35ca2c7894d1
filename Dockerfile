# One image for all roles: `run`, `run --gateway`, `worker --agent NAME`, and every other verb.
#
# Pin the base by digest where you build: --build-arg PYTHON=python@sha256:… (the tag moves).
# tests/infra/test_image.py runs the same steps in a clean folder.
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE vedette.toml ./
COPY src src
COPY agents agents
COPY policies policies
COPY memory memory
COPY samples samples
COPY tools/uv tools/uv-requirements.lock tools/policy_wasm.py tools/
COPY infra/image infra/image
# Compiles the policies for the wheel; not in the image that runs. The version of tools/opa.
COPY --from=openpolicyagent/opa:1.22.0-static /opa /usr/local/bin/opa
RUN UV_LINK_MODE=copy COMPILE=1 infra/image/build.sh /src /opt/vedette

FROM ${PYTHON}
RUN groupadd --gid 10001 vedette \
  && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin vedette \
  && install -d -o 10001 -g 10001 -m 0700 /var/lib/vedette
COPY --from=build /opt/vedette /opt/vedette
RUN ln -s /opt/vedette/fleet /fleet
# Nothing but the state folder is written to, so the root file system may be read-only.
ENV PATH=/opt/vedette/venv/bin:$PATH \
  PYTHONDONTWRITEBYTECODE=1 \
  PYTHONUNBUFFERED=1 \
  VEDETTE_STATE=/var/lib/vedette
WORKDIR /opt/vedette/fleet
USER 10001:10001
VOLUME ["/var/lib/vedette"]
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["/opt/vedette/venv/bin/python", "/opt/vedette/healthy.py"]
ENTRYPOINT ["/opt/vedette/entrypoint"]
CMD ["run", "--plain"]
