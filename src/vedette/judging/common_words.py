"""Common English words, most frequent first: what a disguised word may have been.

Written for this purpose and plain on purpose. What a fleet judges brings its own vocabulary, from
the texts of its bank; this list only fills in what everybody writes.
"""

from __future__ import annotations

_WORDS = """
the be to of and a in that have i it for not on with he as you do at this but his by from they we
say her she or an will my one all would there their what so up out if about who get which go me
when make can like time no just him know take people into year your good some could them see other
than then now look only come its over think also back after use two how our work first well way
even new want because any these give day most us is are was were been being has had did does done
said says going got made makes came comes took taken seen saw knew known thought told tell ask
asked need feel felt felt try tried leave left call called keep kept let begin began seem help
show shown hear heard play run ran move live believe hold bring brought happen happened must
should may might shall here where why again more much many very too still never always ever often
sometimes maybe really right wrong yes okay please thanks thank sorry hello hey dear man men woman
women girl girls boy boys guy guys child children kid kids baby friend friends family mother mom
father dad brother sister son daughter wife husband everyone everybody someone somebody anyone
anybody nobody nothing something anything everything person persons test tests thing things stuff
place world country state city town house home room door street school student students teacher
class book books read write wrote written word words letter letters story name names number
numbers question questions answer answers problem problems point fact case idea life lives death
dead die died kill killed killing hurt pain sick ill health doctor hospital hand hands head face
eye eyes hair heart body mouth ear ears nose leg legs foot feet arm arms skin blood food eat
eating ate drink drank drunk water coffee tea beer wine bread meat fish chicken dog dogs cat cats
horse bird animal animals tree trees flower garden sun moon star stars sky rain snow wind weather
hot cold warm cool fire light dark night morning evening afternoon today tomorrow yesterday
tonight week weeks weekend month months years hour hours minute minutes second seconds early late
later soon before since until while during ago already yet almost enough quite rather pretty
little big small large great long short high low old young best better worse worst bad nice fine
happy sad angry mad crazy stupid dumb idiot idiots fool foolish silly ugly fat lazy weak strong
hard easy soft fast slow quick quickly slowly full empty open close closed clean dirty rich poor
cheap expensive free busy ready sure true false real fake same different another each every both
few several such own last next white black red blue green yellow brown pink colour color money pay
paid price cost buy bought sell sold shop store bank account business company office boss job jobs
worker workers market government president law police court judge prison jail crime war army gun
guns weapon bomb attack attacks fight fighting fought threat threaten threatened hate hates hated
hating love loves loved loving kiss sex sexy naked nude touch rape abuse harm suicide cut burn
burned shoot shot stab beat beating hit punch kick slap strangle destroy ruin murder murderer
terror terrorist terrorists enemy victim revenge evil devil hell god church religion religious
pray christian christians jew jews jewish muslim muslims islam gay gays lesbian trans straight
queer race racist racism nation national immigrant immigrants migrant migrants refugee refugees
foreign foreigner foreigners border illegal american english french german african asian indian
mexican vermin rat rats pig pigs monkey monkeys ape apes cockroach cockroaches parasite parasites
leech trash garbage filth filthy scum disgusting worthless useless pathetic loser losers liar
liars lie lies lying cheat cheater thief steal stole stolen criminal criminals freak freaks coward
creep moron morons bastard damn crap go away shut out off down under above between against through
across along around behind beside near far inside outside without within upon toward towards among
instead however although though whether either neither nor else once twice together alone apart
perhaps actually especially finally exactly simply probably certainly absolutely definitely
completely totally usually suddenly anyway change changed turn turned start started stop stopped
stopping end ended finish finished begin continue wait waiting stay stayed walk walking sit sat
stand stood lie lay sleep slept wake woke talk talked talking speak spoke spoken listen watch
watched look looked looking find found lose lost win won winning meet met learn learned teach
taught understand understood remember forget forgot mean means meant care cares cared hope hoped
wish wished expect believe believed trust trusted doubt explain explained agree agreed decide
decided choose chose chosen plan planned build built create created grow grew grown follow
followed lead led send sent receive received post posted comment comments reply replies message
messages mail email phone number address website site page link click online internet computer
video photo picture pictures music song songs movie film game games team teams player players
sport news report reports media group groups member members party vote election power control
order rule rules right rights freedom speech opinion reason reasons matter matters form kind sort
type part parts side line top bottom front back middle center corner end level rate line list data
system program project service services product products quality value values support supported
customer customers client clients order orders delivery deliver delivered invoice payment receipt
refund booking reserve reserved reservation cancel cancelled confirm confirmed date boat boats
ship ships harbour harbor sea lake river island coast beach bridge road roads car cars bus train
plane flight travel trip holiday visit visited visitor visitors guest guests hotel ticket tickets
tour crew captain sail sailing berth mooring engine fuel repair repaired broken fix fixed urgent
important possible impossible necessary available public private personal social political local
general special common simple clear certain human whole main major single final past present
future recent current able unable likely afraid alive aware born careful dangerous safe safety
serious funny strange normal perfect beautiful terrible horrible awful amazing wonderful excellent
interesting boring tired hungry scared nervous lucky proud quiet loud noise smell taste sound
subject deserve deserves deserved belong belongs allow allowed refuse refused ban banned block
blocked remove removed delete deleted hide hidden warn warned warning report reported punish
punished blame blamed shame ashamed insult insulted offend offended offensive respect disrespect
disgrace mock laugh laughed laughing joke joking smile cry cried crying scream shout shouted yell
"""
COMMON: tuple[str, ...] = tuple(_WORDS.split())
