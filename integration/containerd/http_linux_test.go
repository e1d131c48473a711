// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"io"
	"net/http"
)

// fetchFrom is what a server answers.
func fetchFrom(url string) (string, error) {
	client := &http.Client{Timeout: patience}
	r, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	return string(data), err
}
