# SPDX-License-Identifier: Apache-2.0
#
# The document's step 1, word for word from here on.

mkdir -p /srv/rl-snapshots /srv/rl-episodes

# 1. 启动一个由 golden-docker.ext4 支持的种子 docker:dind 实例
rungv run \
  -p unix:/srv/rl-snapshots/seed.sock:2375 \
  --mount type=volume,src=/srv/rl-snapshots/golden-docker.ext4,dst=/var/lib/docker \
  -e DOCKER_TLS_CERTDIR= \
  docker:dind --tls=false &
SEED_PID=$!

# 2. 在 golden-docker.ext4 内预先填充基础镜像和构建缓存
export DOCKER_HOST="unix:///srv/rl-snapshots/seed.sock"
until docker info >/dev/null 2>&1; do sleep 0.5; done

docker pull python:3.11-slim
docker pull redis:7-alpine
docker pull postgres:16-alpine

# 3. 优雅地停止种子实例，使 ext4lite 刷新并压缩镜像
kill -INT $SEED_PID
wait $SEED_PID
