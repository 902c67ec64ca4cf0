package keyword

import (
	"strings"
	"unicode/utf8"
)

// stops are words that tell no server: those of the language, and those that
// stand in the description of any tool.
var stops = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(`
a about above after again against all also although always am an and another any anyone anything are aren as at away back be became because
become been before being below between both but by came can cannot could couldn did didn do does doesn doing don done down during each
either else enough etc even ever every everything few first for from further get gets getting give given go goes going good got great had
hadn has hasn have haven having he her here hers herself him himself his how however i if in instead into is isn it its itself just keep
know last later least less let lets like ll look looks made make makes making many may maybe me might more most much must my myself near need
needed needs neither never new next no nor not nothing now of off often on once one ones only onto or other others otherwise our ours out
over own per perhaps please put rather re really right s same say second see seem seems several shall she should shouldn show shows since
so some something soon still such sure t take takes than that the their theirs them then there therefore these they thing things third
this those though three through thus to together too took toward try two under until up upon us use used useful user users uses using
usually various ve very via want wants was wasn way we well were weren what when where whether which while who whole whose why will with
within without won would wouldn yes yet you your yours yourself
tool tools server servers mcp api apis call calls called calling request requests requested response responses result results return
returned returning returns value values name names named type types typed string strings number numbers integer int boolean bool true
false null none object objects array arrays list lists listed listing item items parameter parameters param params argument arguments arg
args option options optional optionally required requires require default defaults field fields key keys id ids data information info input inputs
output outputs example examples e g ie eg format formats formatted provide provides provided providing support supports supported specific
specified specify specifies set sets setting settings include includes included including contain contains containing available based
perform performs allow allows allowed enable enables enabled function functions method methods operation operations action actions
retrieve retrieves fetches create creates created update updates updated add adds added remove removes delete deletes start starts end
ends stop run runs running execute executes read reads write writes find finds current currently detail details detailed single multiple
maximum minimum max min limit limits count total size content contents source target text message messages error errors success
successful successfully fail failed fails important model context protocol language service services client clients
integration implementation simple easy easily powerful comprehensive complete help helps helper access accesses ability capabilities
capability feature features task tasks work works working step steps process processes processing check checks handle handles
对于 可以 使用 提供 支持 返回 获取 根据 一个 进行 通过 以及 包括 或者 默认 参数 结果 列表 信息 功能 工具 服务 用户 数据`) {
		m[w] = true
	}
	return m
}()

// particles are characters of Chinese that join words rather than being of one.
const particles = "的了和与或在是以从将并及其您你我他该此这那用于对为被把到个们不也都可能要会后前中上下"

// stop reports whether a folded word tells nothing.
func stop(w string) bool {
	r, _ := utf8.DecodeRuneInString(w)
	return stops[w] || kindOf(r) == character && strings.ContainsAny(w, particles)
}
