# SPDX-License-Identifier: Apache-2.0
#
# The document's step 2, word for word from here on.

EPISODE_ID="ep-0042"
SOCK="/srv/rl-episodes/${EPISODE_ID}.sock"

# 即时写时复制克隆（在 XFS/Btrfs/APFS 上约 100 ms）
cp --reflink=always \
  /srv/rl-snapshots/golden-docker.ext4 \
  "/srv/rl-episodes/${EPISODE_ID}.ext4"

# 启动分配 4 GiB 内存和 2 个 CPU 的隔离非特权回合
rungv run \
  -m 4g --cpus 2 \
  -p "unix:${SOCK}:2375" \
  --mount "type=volume,src=/srv/rl-episodes/${EPISODE_ID}.ext4,dst=/var/lib/docker" \
  -e DOCKER_TLS_CERTDIR= \
  docker:dind --tls=false &
EP_PID=$!

export DOCKER_HOST="unix://${SOCK}"
until docker info >/dev/null 2>&1; do sleep 0.2; done

# 在滚动工作进程内，镜像无需网络拉取即可立即使用
docker images

# 计算奖励后拆除回合（约 10 ms）
kill -KILL $EP_PID
rm -f "/srv/rl-episodes/${EPISODE_ID}.ext4" "${SOCK}"
