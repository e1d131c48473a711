// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What clusters have that is not of Kubernetes itself.

// metricsText has the API server ask the metrics server for what it serves: a service
// without pods, whose one address is the node's.
const metricsText = `
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {ports: [{port: 443, targetPort: 14443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: metrics-server, namespace: kube-system, labels: {kubernetes.io/service-name: metrics-server}}
addressType: IPv4
ports: [{port: 14443, protocol: TCP}]
endpoints: [{addresses: [` + nodeAddress + `], conditions: {ready: true}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  service: {name: metrics-server, namespace: kube-system}
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`

// MetricsServer starts kubernetes-sigs/metrics-server, which `kubectl top` asks.
func (k *Kubernetes) MetricsServer(t testing.TB) {
	t.Helper()
	config := k.path("kubeconfig")
	k.runProgram(t, Need(t, "metrics-server"), "metrics-server", "--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--cert-dir="+k.path("certs"), "--bind-address="+nodeAddress, "--secure-port=14443", "--metric-resolution=10s", "--kubelet-request-timeout=5s",
		"--kubelet-insecure-tls", "--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP")
	k.MustKubectl(t, metricsText, "apply", "-f", "-")
	k.await(t, "the metrics server", func() bool {
		return k.Kubectl(t, "", "get", "apiservice", "v1beta1.metrics.k8s.io", "-o", `jsonpath={.status.conditions[?(@.type=="Available")].status}`).Stdout == "True"
	})
}

// AgentSandbox starts the controller of kubernetes-sigs/agent-sandbox, which makes a
// pod of a Sandbox.
func (k *Kubernetes) AgentSandbox(t testing.TB) {
	t.Helper()
	dir := Need(t, "agent-sandbox")
	k.MustKubectl(t, "", "apply", "-f", filepath.Join(dir, "crds", "agents.x-k8s.io_sandboxes.yaml"))
	k.await(t, "the type Sandbox", func() bool {
		return k.Kubectl(t, "", "get", "crd", "sandboxes.agents.x-k8s.io", "-o", `jsonpath={.status.conditions[?(@.type=="Established")].status}`).Stdout == "True"
	})
	k.runProgram(t, filepath.Join(dir, "agent-sandbox-controller"), "agent-sandbox-controller",
		"--kubeconfig="+k.path("kubeconfig"), "--metrics-bind-address=0", "--health-probe-bind-address=127.0.0.1:20270")
}

// frontProxy writes the keys by which servers beside the API server know it:
// front-ca.crt, front.crt and front.key.
func (k *Kubernetes) frontProxy() error {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "front"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	client := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "front"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		KeyUsage: x509.KeyUsageDigitalSignature, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
	}
	authorityKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	clientKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	clientDER, err := x509.CreateCertificate(rand.Reader, client, authority, &clientKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	return k.writePEM(map[string]*pem.Block{
		"front-ca.crt": {Type: "CERTIFICATE", Bytes: authorityDER},
		"front.crt":    {Type: "CERTIFICATE", Bytes: clientDER},
		"front.key":    {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(clientKey)},
	})
}

func (k *Kubernetes) writePEM(blocks map[string]*pem.Block) error {
	for name, block := range blocks {
		if err := os.WriteFile(k.path(name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}
