package tenant_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/tenant"
)

func TestATokenIsTakenOutOfARequestToAModel(t *testing.T) {
	ann, hash := tenant.NewToken()
	stranger, _ := tenant.NewToken()
	ts := mustNew(t, config.Tenant{Name: "ann", TokenHashes: []string{hash}})
	for _, c := range []struct {
		name   string
		header http.Header
		want   string
		err    error
		left   string
	}{
		{"own header", http.Header{"X-Specbox-Token": {ann}, "Authorization": {"Bearer sk-upstream"}}, "ann", nil, "Authorization"},
		{"as OpenAI's key", http.Header{"Authorization": {"Bearer " + ann}}, "ann", nil, ""},
		{"as Anthropic's key", http.Header{"X-Api-Key": {ann}}, "ann", nil, ""},
		{"as one of two keys", http.Header{"X-Api-Key": {ann}, "Authorization": {"Bearer sk-upstream"}}, "ann", nil, "Authorization"},
		{"a stranger's", http.Header{"X-Specbox-Token": {stranger}, "Authorization": {"Bearer " + ann}}, "", tenant.ErrRefused, "Authorization"},
		{"two", http.Header{"X-Specbox-Token": {ann, ann}}, "", tenant.ErrMalformed, ""},
		{"only the upstream's", http.Header{"Authorization": {"Bearer sk-upstream"}}, "", tenant.ErrNoModelToken, "Authorization"},
		{"none", http.Header{}, "", tenant.ErrNoModelToken, ""},
	} {
		r := &http.Request{Header: c.header}
		got, err := ts.TakeToken(r)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v; want %q, %v", c.name, got, err, c.want, c.err)
		}
		var left []string
		for k := range r.Header {
			left = append(left, k)
		}
		if strings.Join(left, " ") != c.left {
			t.Errorf("%s: left %v, want %q", c.name, left, c.left)
		}
		if err == nil && strings.Contains(fmt.Sprint(r.Header), ann) {
			t.Errorf("%s: the token would reach the upstream", c.name)
		}
	}
}

func TestWithoutTenantsEverybodyMayAskAModel(t *testing.T) {
	r := &http.Request{Header: http.Header{"X-Specbox-Token": {"x"}, "Authorization": {"Bearer sk-upstream"}}}
	if name, err := mustNew(t).TakeToken(r); name != tenant.Default || err != nil || len(r.Header) != 1 {
		t.Errorf("%q, %v, %v", name, err, r.Header)
	}
}
