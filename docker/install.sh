#!/bin/sh
# How every image installs Python packages: wheels only, every version from a constraints file, index settings and
# certificates from build secrets so that no layer ever holds them.
#
#   install.sh CONSTRAINTS NAME... [PIP OPTION...]
#                                requirements/NAME.txt under the versions of a file, into /opt/venv
#   install.sh --uninstall PACKAGE...
#   install.sh --compile FOLDER  requirements/sdists.txt as wheels, into FOLDER
set -eu
requirements=$(dirname "$0")/requirements
if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi
if [ -s /run/secrets/pip ]; then export PIP_CONFIG_FILE=/run/secrets/pip; fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_DEFAULT_TIMEOUT=180

if [ "$1" = --compile ]; then
    exec python3 -m pip wheel --quiet --no-deps --wheel-dir "$2" -r "$requirements/sdists.txt"
fi

# The environment has no pip of its own; that of the interpreter beneath it does the work.
python=$(/opt/venv/bin/python3 -c 'import sys; print(sys._base_executable)')
if [ "$1" = --uninstall ]; then
    shift
    exec "$python" -m pip --python /opt/venv/bin/python3 uninstall --quiet --yes "$@"
fi

constraints=$1
shift
for word; do
    case $word in
    -*) set -- "$@" "$word" ;;
    *) set -- "$@" --requirement "$requirements/$word.txt" ;;
    esac
    shift
done
# PyPI's torch brings several GB of CUDA: CPU images take PyTorch's own index, unless a wheel was given.
if [ "${ACCELERATOR:-}" = cpu ] && ! ls /wheels/torch-*.whl >/dev/null 2>&1; then
    set -- --extra-index-url https://download.pytorch.org/whl/cpu "$@"
fi
started=$(mktemp)
# kfp stands in most images without its client's packages, of which pip would warn each time.
"$python" -m pip --python /opt/venv/bin/python3 install --quiet --no-compile --no-warn-conflicts \
    --only-binary :all: --find-links /wheels --constraint "$constraints" "$@"
# Bytecode that never looks at its source is the same in every build, and stays valid when modification times are set.
# Packages hold a few templates that are no Python: those fail, and nobody imports them.
find /opt/venv -name '*.py' -newer "$started" \
    | /opt/venv/bin/python3 -W ignore -m compileall -qq --invalidation-mode unchecked-hash -i - || true
rm "$started"
