package tenant_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/tenant"
)

func request(authorization ...string) *http.Request {
	r := &http.Request{Header: http.Header{}}
	for _, a := range authorization {
		r.Header.Add("Authorization", a)
	}
	return r
}

func mustNew(t *testing.T, tenants ...config.Tenant) *tenant.Tenants {
	t.Helper()
	ts, err := tenant.New(tenants)
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

func TestEverybodyIsDefaultWithoutTenants(t *testing.T) {
	ts := mustNew(t)
	for _, r := range []*http.Request{request(), request("Bearer anything"), request("Basic Og==")} {
		if got, err := ts.Authenticate(r); got != tenant.Default || err != nil {
			t.Errorf("Authenticate(%v) = %q, %v", r.Header, got, err)
		}
	}
	if !ts.Open() || !ts.Allows(tenant.Default, "git") || ts.Allows("ann", "git") {
		t.Error("an open door is open to the default tenant and knows no other")
	}
}

func TestATokenNamesItsTenant(t *testing.T) {
	ann1, annHash1 := tenant.NewToken()
	ann2, annHash2 := tenant.NewToken()
	bob, bobHash := tenant.NewToken()
	stranger, _ := tenant.NewToken()
	ts := mustNew(t,
		config.Tenant{Name: "ann", TokenHashes: []string{annHash1, "sha256:" + strings.ToUpper(annHash2[7:])}},
		config.Tenant{Name: "bob", TokenHashes: []string{bobHash}, Servers: []string{"git"}},
	)
	for _, c := range []struct {
		name   string
		header []string
		want   string
		err    error
	}{
		{"first token", []string{"Bearer " + ann1}, "ann", nil},
		{"second token", []string{"Bearer " + ann2}, "ann", nil},
		{"other tenant", []string{"Bearer " + bob}, "bob", nil},
		{"scheme in small letters", []string{"bearer  " + bob + " "}, "bob", nil},
		{"no header", nil, "", tenant.ErrNoToken},
		{"two headers", []string{"Bearer " + ann1, "Bearer " + bob}, "", tenant.ErrMalformed},
		{"two tokens", []string{"Bearer " + ann1 + ", Bearer " + bob}, "", tenant.ErrMalformed},
		{"empty", []string{""}, "", tenant.ErrMalformed},
		{"no token", []string{"Bearer "}, "", tenant.ErrMalformed},
		{"other scheme", []string{"Basic " + ann1}, "", tenant.ErrMalformed},
		{"bare token", []string{ann1}, "", tenant.ErrMalformed},
		{"stranger", []string{"Bearer " + stranger}, "", tenant.ErrRefused},
		{"the hash itself", []string{"Bearer " + annHash1}, "", tenant.ErrRefused},
		{"a piece of a token", []string{"Bearer " + ann1[:len(ann1)-1]}, "", tenant.ErrRefused},
	} {
		got, err := ts.Authenticate(request(c.header...))
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: got %q, %v, want %q, %v", c.name, got, err, c.want, c.err)
		}
	}
}

func TestARefusalTellsNothing(t *testing.T) {
	_, hash := tenant.NewToken()
	wrong, _ := tenant.NewToken()
	ts := mustNew(t, config.Tenant{Name: "ann", TokenHashes: []string{hash}})
	for _, header := range [][]string{nil, {"Bearer " + wrong}, {"Basic " + wrong}} {
		_, err := ts.Authenticate(request(header...))
		if err == nil {
			t.Fatalf("%v was let in", header)
		}
		said := err.Error() + tenant.Challenge(err)
		for _, secret := range []string{"ann", wrong, hash} {
			if strings.Contains(said, secret) {
				t.Errorf("the refusal %q names %q", said, secret)
			}
		}
		if !strings.HasPrefix(tenant.Challenge(err), "Bearer ") {
			t.Errorf("challenge %q", tenant.Challenge(err))
		}
	}
}

func TestATenantUsesItsServersOnly(t *testing.T) {
	_, a := tenant.NewToken()
	_, b := tenant.NewToken()
	ts := mustNew(t,
		config.Tenant{Name: "ann", TokenHashes: []string{a}},
		config.Tenant{Name: "bob", TokenHashes: []string{b}, Servers: []string{"git"}})
	for _, c := range []struct {
		tenant, server string
		want           bool
	}{
		{"ann", "git", true}, {"ann", "time", true},
		{"bob", "git", true}, {"bob", "time", false},
		{"eve", "git", false}, {tenant.Default, "git", false}, {"", "git", false},
	} {
		if got := ts.Allows(c.tenant, c.server); got != c.want {
			t.Errorf("Allows(%q, %q) = %v", c.tenant, c.server, got)
		}
	}
}

func TestFaultyTenantsAreNamed(t *testing.T) {
	token, hash := tenant.NewToken()
	_, other := tenant.NewToken()
	for _, c := range []struct {
		name    string
		tenants []config.Tenant
		want    string
	}{
		{"no name", []config.Tenant{{TokenHashes: []string{hash}}}, "tenant 1"},
		{"no token", []config.Tenant{{Name: "ann"}}, `tenant "ann" has no token`},
		{"name twice", []config.Tenant{{Name: "ann", TokenHashes: []string{hash}}, {Name: "ann", TokenHashes: []string{other}}}, `"ann" is configured twice`},
		{"equal tokens", []config.Tenant{{Name: "ann", TokenHashes: []string{hash}}, {Name: "bob", TokenHashes: []string{"sha256:" + strings.ToUpper(hash[7:])}}}, `also a token of "ann"`},
		{"token instead of hash", []config.Tenant{{Name: "ann", TokenHashes: []string{token}}}, "it is no hash"},
		{"short hash", []config.Tenant{{Name: "ann", TokenHashes: []string{hash[:20]}}}, "damaged"},
	} {
		_, err := tenant.New(c.tenants)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.name, err, c.want)
		} else if strings.Contains(err.Error(), token) {
			t.Errorf("%s: the error shows a token: %v", c.name, err)
		}
	}
}

func TestTokensAreFreshAndHashed(t *testing.T) {
	a, hash := tenant.NewToken()
	b, _ := tenant.NewToken()
	if a == b || len(a) < 40 || tenant.Hash(a) != hash || !strings.HasPrefix(hash, "sha256:") {
		t.Errorf("tokens %q, %q, hash %q", a, b, hash)
	}
}

func FuzzAuthenticate(f *testing.F) {
	token, hash := tenant.NewToken()
	ts, err := tenant.New([]config.Tenant{{Name: "ann", TokenHashes: []string{hash}}})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"", "Bearer", "Bearer " + token, "bearer\t" + token, "Bearer a b", "Basic x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		name, err := ts.Authenticate(request(header))
		if (name == "") == (err == nil) {
			t.Fatalf("%q: got %q, %v", header, name, err)
		}
		if err == nil && !strings.Contains(header, token) {
			t.Fatalf("%q was let in", header)
		}
	})
}
