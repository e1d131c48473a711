// SPDX-License-Identifier: Apache-2.0

//go:build race

// The race detector makes everything larger.

package ext4lite_test

const raceDetector = true
