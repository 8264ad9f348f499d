"""A real Kubernetes API server for the tests: kube-apiserver and etcd, no kubelet and no controllers."""
