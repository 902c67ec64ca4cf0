module github.com/specbox/specbox

go 1.26
