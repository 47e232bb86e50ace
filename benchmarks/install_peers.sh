#!/usr/bin/env bash
# The peers, llama.cpp built for this processor, in an environment of their own. Takes about a quarter of an hour.
# Usage: benchmarks/install_peers.sh ENVIRONMENT, from the repository's root; the environment exists and has pip.
set -euo pipefail
ENVIRONMENT=$PWD/$1
PIP="$ENVIRONMENT/bin/pip --disable-pip-version-check --quiet"
LLAMA=$(grep '^llama-cpp-python' benchmarks/peers.txt)
NATIVE="-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DLLAMA_OPENSSL=OFF"
# Nothing is fetched while building.
SERVER="-DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_APP=OFF"
SERVER+=" -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF"
JOBS=$(nproc)
export PATH="$ENVIRONMENT/bin:$PATH" CMAKE_BUILD_PARALLEL_LEVEL=$JOBS

echo "installing torch and transformers"
$PIP install "$(grep '^torch==' constraints.txt)"
# shellcheck disable=SC2046
$PIP install --constraint constraints.txt $(grep -v -e '^#' -e '^llama-cpp-python' benchmarks/peers.txt)

echo "building llama.cpp for Python"
CMAKE_ARGS="$NATIVE" $PIP install --constraint constraints.txt --no-binary llama-cpp-python "$LLAMA"

echo "building llama.cpp's server from the same source"
SOURCES=$(mktemp -d)
trap 'rm -rf "$SOURCES"' EXIT
$PIP download --no-deps --no-binary llama-cpp-python --dest "$SOURCES" "$LLAMA"
tar --extract --gzip --strip-components 1 --directory "$SOURCES" --file "$SOURCES"/*.tar.gz
# shellcheck disable=SC2086
cmake -G Ninja -S "$SOURCES/vendor/llama.cpp" -B "$SOURCES/build" $NATIVE $SERVER -DBUILD_SHARED_LIBS=OFF >"$SOURCES/log"
cmake --build "$SOURCES/build" --target llama-server >>"$SOURCES/log" || { tail -n 20 "$SOURCES/log"; exit 1; }
install "$SOURCES/build/bin/llama-server" "$ENVIRONMENT/bin/llama-server"
